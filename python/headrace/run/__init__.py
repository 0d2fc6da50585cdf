"""Runs a Python program with what can be switched on for it: `from_pretrained` of Transformers through headrace.

    python -m headrace.run script.py argument...
    python -m headrace.run -m module argument...

Nothing is imported that the program does not import.
"""
