"""Planted faults and healthy runs, see ``kit``. ``python -m tests.faults`` prints how many are answered rightly."""
