"""The keyed functions of the schemes, one module a family, in NumPy integers: the specification."""
