"""The Seedance streaming protocol, seedance.v1, without I/O.

Import from the modules: `messages` is the vocabulary, `connection` one end of a connection, `codec` the
encodings, `errors` the tree and the close codes, `window` flow control.
"""
