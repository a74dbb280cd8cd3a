"""The format on disk: its declaration (`layout`), and encoding and decoding of one or many records."""
