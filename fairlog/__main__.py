"""`python -m fairlog`: the same as the `fairlog` command."""

from fairlog.cli.main import main

if __name__ == "__main__":
    main()
