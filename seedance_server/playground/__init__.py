"""The playground: one static page that shows what this server does, and the routes that serve its files."""
