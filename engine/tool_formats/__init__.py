"""The formats in which models write tool calls, read while the text arrives. docs/tool-calls.md has the whole table.

formats.py   which format a model uses, by its chat template or by name
events.py    what a parser says
parser.py    the parser: a grammar of the format, turned into events
grammar.py   what a grammar is made of; the other files are one grammar each, or a part of several
"""
