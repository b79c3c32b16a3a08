"""The commands: each one parses its options, calls the library and prints what comes back."""
