"""`python -m bayestta` is `bayestta`."""

from bayestta.cli import main

if __name__ == "__main__":
    main()
