"""Many runs from one file: a grid, a folder that knows what is left to do, Ray to do it."""
