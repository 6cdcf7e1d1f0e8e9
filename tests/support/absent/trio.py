"""Stands before Selenium's trio in the processes that the tests start: httpcore imports trio where
it is installed, which costs an eighth of a worker's start, and no user has it.
"""

raise ImportError("trio is here for Selenium alone")
