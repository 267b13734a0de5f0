"""What Prometheus is told of the server: a catalogue, instruments for requests, a collector for the rest."""
