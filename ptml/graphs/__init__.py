"""Graphs as data: any graph of registered ops to readable JSON, and back."""

from ptml.graphs import ops
from ptml.graphs.decode import Graph, graph_from_json
from ptml.graphs.encode import graph_to_json
from ptml.graphs.errors import GraphError
from ptml.graphs.registry import register_op, registered_ops

__all__ = ["Graph", "GraphError", "graph_from_json", "graph_to_json", "ops", "register_op", "registered_ops"]
