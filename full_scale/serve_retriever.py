"""`python -m full_scale.serve_retriever`: serve a corpus at /retrieve, in Search-R1's protocol.

    python -m full_scale.serve_retriever                                  FactWorld, BM25, port 8000
    python -m full_scale.serve_retriever --corpus wiki-18.jsonl --index dense \
        --model intfloat/e5-base-v2 --index-file e5_Flat.index            the paper's retriever

What this file does not do: download anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from full_scale.retriever.index import build_index
from full_scale.retriever.server import serve


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m full_scale.serve_retriever", description="Serve a corpus at /retrieve."
    )
    parser.add_argument("--corpus", default="factworld", help="'factworld' or a JSON-lines file (Search-R1's wiki-18)")
    parser.add_argument("--index", choices=["bm25", "dense"], default="bm25")
    parser.add_argument("--model", help="embedding model of a dense index; the paper's is intfloat/e5-base-v2")
    parser.add_argument("--index-file", help="a prebuilt faiss index of the corpus")
    parser.add_argument("--topk", type=int, default=3, help="documents when a request names no number")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args(argv)
    index = build_index(args.corpus, kind=args.index, model=args.model, index_file=args.index_file)
    print(f"serving {len(index.documents)} documents at http://{args.host}:{args.port}/retrieve", flush=True)
    serve(index, host=args.host, port=args.port, topk=args.topk)


if __name__ == "__main__":
    main()
