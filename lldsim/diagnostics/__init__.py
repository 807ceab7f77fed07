"""Reading records and batches: collapse, phases, displacement, similarity, tool rounds, Def. A.3, seeds.

Needs only records and arrays, never the trainer; probe.py takes these measurements on a running toy.
"""
