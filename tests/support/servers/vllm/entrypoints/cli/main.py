"""The command line: `vllm serve MODEL OPTION...`, without the serving."""

import argparse
import json

from vllm.entrypoints.llm import LLM


def main(arguments):
    parser = argparse.ArgumentParser("vllm", allow_abbrev=False)
    serve = parser.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("model")
    serve.add_argument("--load-format", default="auto")
    serve.add_argument("--model-loader-extra-config", type=json.loads, default={})
    serve.add_argument("--tensor-parallel-size", type=int, default=1)
    options = vars(parser.parse_args(arguments))
    return LLM(options.pop("model"), **options)
