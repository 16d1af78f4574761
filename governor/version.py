"""The version, alone in its file so that setup.cfg and the command line read it without importing the rest."""

__version__ = "0.1.0"
