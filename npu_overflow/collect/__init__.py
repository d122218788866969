"""Collectors: they fetch the operators that overflowed, as a dump tree."""
