"""The command line: `python -m sglang.launch_server OPTION...`, without the serving. Plugins come before options."""

import argparse
import json

from sglang.srt import server_args
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.plugins import load_plugins


def main(arguments):
    load_plugins()
    parser = argparse.ArgumentParser("launch_server", allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--load-format", choices=server_args.LOAD_FORMAT_CHOICES, default="auto")
    parser.add_argument("--model-loader-extra-config", type=json.loads, default={})
    return Engine(**vars(parser.parse_args(arguments)))
