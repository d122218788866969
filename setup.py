"""For installers that know only setup.py; everything is said in setup.cfg."""
from setuptools import setup

setup()
