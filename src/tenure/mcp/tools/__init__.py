"""The tools, a module for each toolset; the docstring of a tool is its description for the model."""
