"""Disks that come and go, and those that the system keeps from a program."""
