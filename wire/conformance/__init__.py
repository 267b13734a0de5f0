"""Conformance of an implementation of seedance.v1, in any language: see README.md beside this file."""
