"""Runs a command and listens meanwhile to every packet of this host, as somebody on its network would.

eavesdrop.py REPORT TEXT COMMAND…: writes to REPORT, as JSON, how many packets and bytes there were, how many packets
were missed, and in how many the text was. Ends as the command does."""

import json
import socket
import struct
import subprocess
import sys
import threading

ALL_PACKETS = 0x0003
SOL_PACKET, PACKET_STATISTICS = 263, 6
SO_RCVBUFFORCE = 33


class Listener:
    def __init__(self, text):
        self.text, self.packets, self.bytes, self.found, self.stopped = text, 0, 0, 0, False
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PACKETS))
        self.socket.settimeout(0.1)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 128 << 20)
        except PermissionError:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 << 20)
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        while True:
            try:
                packet = self.socket.recv(1 << 18)
            except TimeoutError:
                if self.stopped:
                    return
                continue
            self.packets += 1
            self.bytes += len(packet)
            self.found += self.text in packet

    def report(self):
        self.stopped = True
        self.thread.join()
        _, missed = struct.unpack("II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        return {"packets": self.packets, "bytes": self.bytes, "missed": missed, "found": self.found}


def main():
    path, text, command = sys.argv[1], sys.argv[2].encode(), sys.argv[3:]
    listener = Listener(text)
    try:
        code = subprocess.run(command).returncode
    finally:
        with open(path, "w") as file:
            json.dump(listener.report(), file)
    sys.exit(code)


if __name__ == "__main__":
    main()
