#!/usr/bin/env python
"""Command line entry of a checkout: the commands of broker_site/commandline.py."""

from broker_site import commandline

if __name__ == "__main__":
    commandline.main()
