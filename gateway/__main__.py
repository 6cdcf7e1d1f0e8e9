"""`python -m gateway` is `bulkhead`."""

from gateway.cli import main

main(prog_name="bulkhead")
