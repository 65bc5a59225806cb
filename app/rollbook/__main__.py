"""`python -m rollbook` is the command line."""

from rollbook.cli import main

if __name__ == "__main__":
    main()
