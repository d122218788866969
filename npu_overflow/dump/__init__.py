"""The Ascend overflow dump on disk, read and written. Knows nothing of TensorFlow or of verdicts.
"""
