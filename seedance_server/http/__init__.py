"""The HTTP side of the one port: an ASGI application, and the HTTP/1.1 connections that it is served on."""
