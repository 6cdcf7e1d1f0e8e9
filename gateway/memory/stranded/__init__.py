"""Wired memory that a dead worker has left taken, by no process, until the next boot.

macOS only (omlx#2184). `policy` judges, `account` is what it knows of one worker, `record` keeps it
for the next gateway of the same boot, `at_start` takes it up again.
"""
