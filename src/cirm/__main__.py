"""`python -m cirm`: the command line, where its script is not on the path."""

from cirm.cli import main

if __name__ == "__main__":
    main()
