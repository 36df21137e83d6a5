"""The methods, one a file; they are found by walking this package."""
