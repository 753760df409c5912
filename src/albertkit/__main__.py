"""`python -m albertkit`: the command line."""

from albertkit.cli import main

if __name__ == "__main__":
    main()
