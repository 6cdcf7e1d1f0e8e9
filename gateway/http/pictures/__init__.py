"""Pictures that requests bring or name: from an address of any kind to a file's bytes.

They are not decoded here: what makes pixels of them is the worker's.
"""
