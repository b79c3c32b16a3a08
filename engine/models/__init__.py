"""The models the engine can run and the files they are read from."""
