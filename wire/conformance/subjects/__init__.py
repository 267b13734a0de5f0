"""Implementations under test: our own client and server, and how they are broken on purpose."""
