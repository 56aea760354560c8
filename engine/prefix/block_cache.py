"""Content-addressed KV blocks: every prefix in the pool, found by its tokens, whoever computed it.

A tree per namespace. A node is one block of tokens behind its parent's; its address is a digest chained over the
model's fingerprint, the namespace, the parent and the tokens. A full node is immutable and may be shared. A tail is
a leaf with fewer tokens, the end of something that was computed: it is never shared, only copied.

    root ── [32 tokens] ── [32 tokens] ── [32 tokens] ── (7 tokens)          an ended turn
                                  └────── [32 tokens] ── (20 tokens)         a branch of it

Any part of a node's tokens can be reused: the block is copied, and what follows the common part is overwritten.
For models with recurrent state, reuse ends where a state was stored (`states`: offset in the node → state row).
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from weakref import WeakValueDictionary

from .kv_pool import BlockPool

Tokens = tuple[int, ...]

_REMEMBERED_EVICTIONS = 1 << 16


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """`tokens` of one block, at positions `start` and following. The root of a namespace has none and block -1."""

    key: bytes
    parent: Node | None
    start: int
    tokens: Tokens
    block: int
    children: dict[bytes, Node] = field(default_factory=dict)
    tails: list[Node] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def successors(self) -> Iterator[Node]:
        yield from self.children.values()
        yield from self.tails

    def path(self) -> list[Node]:
        """The nodes from the first block to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.tokens:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt is known: whole blocks, then `part` tokens of the block of `tail`.

    `state_row` holds the recurrent state after `length` tokens; None for models without state.
    """

    nodes: tuple[Node, ...] = ()
    tail: Node | None = None
    part: int = 0
    state_row: int | None = None

    @property
    def length(self) -> int:
        return sum(len(node.tokens) for node in self.nodes) + self.part

    @property
    def goes_on(self) -> bool:
        """Whether all known text ends where the match does, so that a longer prompt only goes on from there."""
        if self.tail is not None:
            return self.part == len(self.tail.tokens)
        return bool(self.nodes) and not any(self.nodes[-1].successors)


class BlockCache:
    """The index over the blocks of a pool. Only the engine thread calls it."""

    def __init__(self, fingerprint: str, blocks: int, state_rows: int, block_tokens: int) -> None:
        self._fingerprint = fingerprint
        self._block_tokens = block_tokens
        # A root lives as long as a block or a session hangs on it: clients may name any number of namespaces.
        self._roots: WeakValueDictionary[str, Node] = WeakValueDictionary()
        self._by_key: dict[bytes, Node] = {}
        self._by_block: dict[int, Node] = {}
        self._checkpoints: OrderedDict[tuple[Node, int], None] = OrderedDict()
        # States of pins, which nobody else gets.
        self._pinned_states: Counter[tuple[Node, int]] = Counter()
        # Addresses of blocks that were evicted, the oldest forgotten first: only to explain a miss.
        self._evicted_keys: OrderedDict[bytes, None] = OrderedDict()
        self._has_state = state_rows > 0
        self.blocks = BlockPool(blocks, self._evicted)
        self.state_rows = BlockPool(state_rows)

    def __len__(self) -> int:
        return len(self._by_block)

    def knows(self, namespace: str) -> bool:
        """Whether anything is stored in the namespace."""
        root = self._roots.get(namespace)
        return root is not None and any(root.successors)

    def root(self, namespace: str) -> Node:
        """The empty prefix of a namespace."""
        root = self._roots.get(namespace)
        if root is None:
            seed = hashlib.blake2b(digest_size=32)
            for part in (self._fingerprint, namespace):
                seed.update(len(part.encode()).to_bytes(8, "big") + part.encode())
            root = self._roots[namespace] = Node(seed.digest(), None, 0, (), -1)
        return root

    def match(self, namespace: str, tokens: Sequence[int], most: int) -> Match:
        """The longest known prefix of `tokens` with at most `most` tokens. Changes nothing."""
        return self.usable(self.longest(namespace, tokens), most)

    def longest(self, namespace: str, tokens: Sequence[int]) -> Match:
        """All that is known of a prompt's beginning, for models with state too: it may end between two states."""
        node, nodes = self.root(namespace), list[Node]()
        for start in range(0, len(tokens) - self._block_tokens + 1, self._block_tokens):
            block = tuple(tokens[start : start + self._block_tokens])
            following = self._found(address(node.key, block), block)
            if following is None:
                break
            node = following
            nodes.append(node)
        position = len(nodes) * self._block_tokens
        tail, part = _nearest(node, tokens[position : position + self._block_tokens])
        return Match(tuple(nodes), tail, part)

    def usable(self, known: Match, most: int) -> Match:
        """What of `known`, the result of `longest`, can be taken over: `most` tokens at most, and for models with
        recurrent state no more than up to the last stored one."""
        match = _cut(known, most)
        if not self._has_state:
            return match
        path = [(node, self._block_tokens) for node in match.nodes]
        if match.tail is not None:
            path.append((match.tail, match.part))
        for index in range(len(path) - 1, -1, -1):
            node, offset = _last_state(*path[index])
            if offset:
                return _shape(match.nodes[:index], node, offset, self._block_tokens, node.states[offset])
        return Match()

    def was_evicted(self, match: Match, tokens: Sequence[int]) -> bool:
        """Whether the block that would follow the whole blocks of a match was known once."""
        start = match.nodes[-1].end if match.nodes else 0
        following = tuple(tokens[start : start + self._block_tokens])
        if len(following) < self._block_tokens or not match.nodes:
            return False
        return address(match.nodes[-1].key, following) in self._evicted_keys

    def insert(self, parent: Node, tokens: Tokens, block: int, keep_longest: bool = False) -> Node:
        """Makes a full block known. Returns the node, whose block is another one if the content was known already:
        the caller must then use that one."""
        assert len(tokens) == self._block_tokens
        key = address(parent.key, tokens)
        existing = self._found(key, tokens)
        if existing is not None:
            if keep_longest:
                self._keep_longest(existing)
            return existing
        node = Node(key, parent, parent.end, tokens, block)
        parent.children[node.key] = self._by_key[node.key] = node
        self._adopt(node, keep_longest)
        self._absorb_shorter_tails(node)
        return node

    def insert_tail(self, parent: Node, tokens: Tokens, block: int) -> Node:
        """Makes a partly filled block known. Returns the node that holds the tokens: an existing one if they begin
        something that is known already."""
        assert 0 < len(tokens) < self._block_tokens
        for other in parent.successors:
            if other.tokens[: len(tokens)] == tokens:
                return other
        node = Node(address(parent.key, tokens), parent, parent.end, tokens, block)
        parent.tails.append(node)
        self._adopt(node, keep_longest=False)
        self._absorb_shorter_tails(node)
        return node

    def touch(self, match: Match) -> None:
        """Marks a match as just used, the deepest block first, so that leaves are evicted before what they need."""
        for node in [match.tail, *reversed(match.nodes)]:
            if node is not None:
                self.blocks.touch(node.block)

    def store_state(self, node: Node, offset: int, row: int) -> None:
        """Hands over a state row that holds the state after the first `offset` tokens of the node."""
        assert 0 < offset <= len(node.tokens)
        if offset in node.states:
            self.state_rows.release([row])
            return
        node.states[offset] = row
        self._checkpoints[node, offset] = None

    def take_state_row(self) -> int | None:
        """A row with one reference, the oldest checkpoint's if need be; None when all are held by sequences."""
        if not self.state_rows.available and self._checkpoints:
            (node, offset), _ = self._checkpoints.popitem(last=False)
            self.state_rows.release([node.states.pop(offset)])
        return self.state_rows.allocate(1)[0] if self.state_rows.available else None

    def has(self, key: bytes) -> bool:
        """Whether the whole block of that address is known, and with it all before it."""
        return key in self._by_key

    def holds(self, node: Node) -> bool:
        """Whether the node is still known, with the block that it had."""
        return self._by_block.get(node.block) is node

    def pin_state(self, node: Node, offset: int) -> None:
        """Keeps a stored state until `unpin_state`, called as often, lets it go."""
        self._pinned_states[node, offset] += 1
        self._checkpoints.pop((node, offset), None)

    def unpin_state(self, node: Node, offset: int) -> None:
        """Lets a state go that was pinned: it is the latest of those that may be taken."""
        self._pinned_states[node, offset] -= 1
        if not self._pinned_states[node, offset]:
            del self._pinned_states[node, offset]
            self._checkpoints[node, offset] = None

    def holders_of_state(self) -> list[int]:
        """The rows of all stored states."""
        stored = [*self._checkpoints, *self._pinned_states]
        return [node.states[offset] for node, offset in stored]

    def check_nodes(self, blocks: Iterable[int]) -> None:
        """Asserts that the nodes of these blocks hang in the tree under their own addresses, with whole tokens (I3)."""
        for block in blocks:
            node = self._by_block.get(block)
            if node is not None:
                self._check_node(block, node)

    def _check_node(self, block: int, node: Node) -> None:
        parent = node.parent
        assert node.block == block, f"block {block} belongs to a node of block {node.block}"
        assert parent is not None, f"block {block} has no parent"
        assert parent.end == node.start, f"block {block} does not follow its parent"
        assert parent.block == -1 or parent.block in self._by_block, f"block {block} lost its parent"
        assert node.key == address(parent.key, node.tokens), f"block {block} has a wrong address"
        if len(node.tokens) == self._block_tokens:
            assert parent.children.get(node.key) is self._by_key.get(node.key) is node
        else:
            assert node in parent.tails

    def _found(self, key: bytes, tokens: Tokens) -> Node | None:
        found = self._by_key.get(key)
        # The digest finds, the tokens decide.
        return found if found is not None and found.tokens == tokens else None

    def _adopt(self, node: Node, keep_longest: bool) -> None:
        self._by_block[node.block] = node
        self.blocks.remember(node.block, keep_longest)

    def _absorb_shorter_tails(self, node: Node) -> None:
        """Drops tails whose tokens `node` begins with, and takes over their states."""
        assert node.parent is not None
        for tail in [
            t for t in node.parent.tails if t is not node and node.tokens[: len(t.tokens)] == t.tokens
        ]:
            for offset, row in tail.states.items():
                del self._checkpoints[tail, offset]
                self.store_state(node, offset, row)
            tail.states.clear()
            self._remove(tail)

    def _keep_longest(self, node: Node) -> None:
        self.blocks.retain([node.block])
        self.blocks.remember(node.block, keep_longest=True)
        self.blocks.release([node.block])

    def _evicted(self, block: int) -> None:
        node = self._by_block[block]
        self._evicted_keys[node.key] = None
        if len(self._evicted_keys) > _REMEMBERED_EVICTIONS:
            self._evicted_keys.popitem(last=False)
        self._remove(node)

    def _remove(self, node: Node) -> None:
        """Forgets a node and all that follows it: what follows can't be reached without it."""
        for following in list(node.successors):
            self._remove(following)
        for offset, row in node.states.items():
            del self._checkpoints[node, offset]
            self.state_rows.release([row])
        node.states.clear()
        assert node.parent is not None
        if node in node.parent.tails:
            node.parent.tails.remove(node)
        else:
            del node.parent.children[node.key], self._by_key[node.key]
        del self._by_block[node.block]
        self.blocks.forget(node.block)


def address(parent: bytes, tokens: Tokens) -> bytes:
    """The address of the block of `tokens` behind the block, or the empty prefix, with the address `parent`:
    BLAKE2b-256 over that and the tokens as little-endian int64."""
    return hashlib.blake2b(parent + struct.pack(f"<{len(tokens)}q", *tokens), digest_size=32).digest()


def _nearest(node: Node, tokens: Sequence[int]) -> tuple[Node | None, int]:
    """The successor that shares the longest beginning with `tokens`, and how many tokens that is."""
    best, shared = None, 0
    for successor in node.successors:
        count = common(successor.tokens, tokens)
        if count > shared:
            best, shared = successor, count
    return best, shared


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of leading tokens that both share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(match: Match, most: int) -> Match:
    """The first `most` tokens of a match: a block that is needed in part becomes the tail."""
    if match.length <= most:
        return match
    whole = tuple(node for node in match.nodes if node.end <= most)
    rest = match.nodes[len(whole)] if len(whole) < len(match.nodes) else match.tail
    part = most - (whole[-1].end if whole else 0)
    return Match(whole, rest if part else None, part)


def _last_state(node: Node, most: int) -> tuple[Node, int]:
    """Where the last state within the first `most` tokens of a node is stored, and how many tokens it is after; 0 if
    there is none. Another node that begins alike may have it: of branches, the first one stored it."""
    assert node.parent is not None
    wanted = node.tokens[:most]
    found = [
        (offset, other)
        for other in node.parent.successors
        for offset in other.states
        if offset <= most and other.tokens[:offset] == wanted[:offset]
    ]
    offset, holder = max(found, key=lambda pair: pair[0], default=(0, node))
    return holder, offset


def _shape(before: tuple[Node, ...], node: Node, offset: int, block_tokens: int, row: int) -> Match:
    if offset == block_tokens:
        return Match((*before, node), None, 0, row)
    return Match(before, node, offset, row)
