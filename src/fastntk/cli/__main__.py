"""``python -m fastntk.cli``."""

from fastntk.cli import main

if __name__ == "__main__":
    main()
