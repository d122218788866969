"""Fuzzers, see ``python -m tests.fuzz --help``: a coverage-guided one on what reads files, and one that damages sample trees and reads them through every
reporter. Neither needs TensorFlow."""
