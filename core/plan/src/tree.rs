//! A broadcast tree: the sender of each node, and the order of sending.

use std::collections::VecDeque;

use serde::{Serialize, Serializer, ser::SerializeStruct};
use thiserror::Error;

/// Reasons why parents and order do not form a tree.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TreeError {
    #[error("order: {found} entries for {nodes} nodes")]
    Length { found: usize, nodes: usize },
    #[error("order[{place}]: node {node} is none of the {nodes} nodes, or stands there twice")]
    Order { place: usize, node: usize, nodes: usize },
    #[error("parent: no node has none; a tree has one root")]
    NoRoot,
    #[error("parent: two roots, nodes {first} and {second}; a tree has one")]
    TwoRoots { first: usize, second: usize },
    #[error("parent[{node}]: {parent} stands after node {node} in the order, or is no node")]
    Parent { node: usize, parent: usize },
}

/// A tree over nodes 0…N−1. Parents come before their children in the order, and a node serves its children in that
/// order. As JSON: `{"parent": [-1, 0, …], "order": [0, …]}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tree {
    parent: Vec<Option<usize>>,
    order: Vec<usize>,
}

impl Tree {
    /// A tree from each node's parent (the root has none) and the order in which nodes are attached, the root first.
    ///
    /// # Errors
    /// [`TreeError`]: the order is no permutation, a parent does not come before its child, or there are two roots.
    pub fn new(parent: Vec<Option<usize>>, order: Vec<usize>) -> Result<Tree, TreeError> {
        let nodes = parent.len();
        if order.len() != nodes {
            return Err(TreeError::Length { found: order.len(), nodes });
        }
        let mut roots = (0..nodes).filter(|&node| parent[node].is_none());
        let first = roots.next().ok_or(TreeError::NoRoot)?;
        if let Some(second) = roots.next() {
            return Err(TreeError::TwoRoots { first, second });
        }
        let mut seen = vec![false; nodes];
        for (place, &node) in order.iter().enumerate() {
            if node >= nodes || seen[node] {
                return Err(TreeError::Order { place, node, nodes });
            }
            if let Some(above) = parent[node]
                && (above >= nodes || !seen[above])
            {
                return Err(TreeError::Parent { node, parent: above });
            }
            seen[node] = true;
        }
        Ok(Tree { parent, order })
    }

    /// A tree for `nodes` nodes that contains only the root. See [`Tree::attach`].
    pub(crate) fn begin(nodes: usize, root: usize) -> Tree {
        Tree { parent: vec![None; nodes], order: vec![root] }
    }

    /// Adds `child` as the last child of `parent`. The parent must be in the tree, the child must not.
    pub(crate) fn attach(&mut self, child: usize, parent: usize) {
        debug_assert!(!self.order.contains(&child) && self.order.contains(&parent));
        self.parent[child] = Some(parent);
        self.order.push(child);
    }

    /// The tree of these parents, in breadth-first order, children ascending.
    pub(crate) fn breadth_first(root: usize, parent: &[Option<usize>]) -> Tree {
        let mut children = vec![Vec::new(); parent.len()];
        for (child, above) in parent.iter().enumerate() {
            if let Some(above) = *above {
                children[above].push(child);
            }
        }
        let mut tree = Tree::begin(parent.len(), root);
        let mut waiting = VecDeque::from([root]);
        while let Some(node) = waiting.pop_front() {
            for &child in &children[node] {
                tree.attach(child, node);
                waiting.push_back(child);
            }
        }
        tree
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.parent.len()
    }

    /// The node without a parent.
    #[must_use]
    pub fn root(&self) -> usize {
        self.order[0]
    }

    /// A node's parent; the root has none.
    #[must_use]
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.parent[node]
    }

    /// All parents, by node.
    #[must_use]
    pub fn parents(&self) -> &[Option<usize>] {
        &self.parent
    }

    /// All nodes, the root first and parents before their children.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// (parent, child) of each edge in the order of attachment.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.order.iter().filter_map(|&child| Some((self.parent[child]?, child)))
    }

    /// Each node's children, in the order of serving.
    #[must_use]
    pub fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.nodes()];
        for (parent, child) in self.edges() {
            children[parent].push(child);
        }
        children
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parent: Vec<i64> = self.parent.iter().map(|parent| parent.map_or(-1, |node| node as i64)).collect();
        let mut fields = serializer.serialize_struct("Tree", 2)?;
        fields.serialize_field("parent", &parent)?;
        fields.serialize_field("order", &self.order)?;
        fields.end()
    }
}
