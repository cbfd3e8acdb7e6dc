"""``python -m fastntk``: the command line, also where the script is not on the path."""

from fastntk.cli import main

if __name__ == "__main__":
    main()
