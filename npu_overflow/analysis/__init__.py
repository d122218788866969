"""From a dump tree to a ``Report``: statistics, verdicts, the chain of culprits, advice."""
