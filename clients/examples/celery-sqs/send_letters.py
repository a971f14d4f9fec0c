"""Queue letters: `python send_letters.py 1 20 FOLDER` prints the number of each stored task."""

import sys
import time

from botocore.exceptions import BotoCoreError, ClientError
from kombu.exceptions import OperationalError
from tasks import send_letter

PAUSE_S = 0.02


def send(number: int, folder: str) -> None:
    """Send a task until it is stored. After an error it may be stored, and run, twice."""
    while True:
        try:
            send_letter.delay(number, folder)
        except (OperationalError, BotoCoreError, ClientError) as error:
            print(f"letter {number} is sent again: {error}", file=sys.stderr)
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    first, last, folder = sys.argv[1:]
    for number in range(int(first), int(last) + 1):
        send(number, folder)
        print(number, flush=True)
        time.sleep(PAUSE_S)
