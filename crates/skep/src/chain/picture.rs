//! Pictures of a chain, with what was counted: a tree of text, DOT for graphviz, SVG.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Edge, EdgeStats, Graph, NodeId, NodeStats, Stats, To, Verdicts, verdicts};

/// What an edge says.
fn label(on: Verdicts, edge: Edge) -> String {
    edge.bound.map_or(on.to_string(), |bound| format!("{on} ({bound} times)"))
}

fn of_edge(stats: Option<&Stats>, from: NodeId, on: Verdicts, to: To) -> Option<EdgeStats> {
    let (_, counted) = stats?.edges.iter().find(|(key, _)| *key == (from, on, to))?;
    Some(*counted)
}

/// Returns the name of a node's program.
#[must_use]
pub fn program_name(graph: &Graph, id: NodeId) -> &str {
    graph.node(id).map_or("(removed)", |n| n.program.name.as_str())
}

/// A node's number and program, and what it cost: runs, bytes and time, then verdicts.
fn node_lines(graph: &Graph, stats: Option<&Stats>, id: NodeId) -> Vec<String> {
    let name = program_name(graph, id);
    let mut lines = vec![format!("{id} {name}")];
    let Some(stats) = stats else { return lines };
    let none = NodeStats::default();
    let counted = stats.nodes.get(&id).unwrap_or(&none);
    let mut cost = format!("{} runs, {} bytes", counted.runs(), counted.bytes);
    if counted.ns > 0 {
        let each = counted.ns as f64 / counted.runs().max(1) as f64;
        let _ = write!(cost, ", {each:.1} ns each");
    }
    lines.push(cost);
    let verdicts: Vec<String> =
        counted.verdicts().into_iter().map(|(name, n)| format!("{name} {n}")).collect();
    if !verdicts.is_empty() {
        lines.push(verdicts.join(", "));
    }
    lines
}

/// The same in one line.
fn node_text(graph: &Graph, stats: Option<&Stats>, id: NodeId) -> String {
    node_lines(graph, stats, id).join("  ")
}

/// How often an edge was used.
fn edge_text(counted: Option<EdgeStats>) -> String {
    match counted {
        None => String::new(),
        Some(EdgeStats { taken, refused: 0 }) => format!(" [{taken}]"),
        Some(EdgeStats { taken, refused }) => format!(" [{taken}, {refused} refused]"),
    }
}

fn target_text(to: To) -> String {
    match to {
        To::End(verdict) => format!("end: {}", verdicts::name(verdict)),
        To::Keep => "end: keep".to_owned(),
        To::Node(id) => id.to_string(),
    }
}

/// Draws a chain as a tree. A node that comes again is only named.
#[must_use]
pub fn text(graph: &Graph, stats: Option<&Stats>) -> String {
    fn draw(
        out: &mut String,
        graph: &Graph,
        stats: Option<&Stats>,
        (id, depth): (NodeId, usize),
        seen: &mut BTreeSet<NodeId>,
    ) {
        let _ = writeln!(out, "{}", node_text(graph, stats, id));
        seen.insert(id);
        for (on, edge) in graph.node(id).map(|n| n.edges()).unwrap_or_default() {
            let indent = "    ".repeat(depth);
            let times = edge_text(of_edge(stats, id, on, edge.to));
            let _ = write!(out, "{indent}└ {}{times} → ", label(on, edge));
            match edge.to {
                To::Node(next) if !seen.contains(&next) => {
                    draw(out, graph, stats, (next, depth + 1), seen);
                }
                To::Node(next) => {
                    let name = program_name(graph, next);
                    let _ = writeln!(out, "{next} {name} (above)");
                }
                other => {
                    let _ = writeln!(out, "{}", target_text(other));
                }
            }
        }
    }
    let mut out = String::new();
    let mut seen = BTreeSet::new();
    match graph.entry() {
        Some(entry) => draw(&mut out, graph, stats, (entry, 0), &mut seen),
        None => {
            let _ = writeln!(out, "no program: {}", verdicts::name(graph.empty_verdict()));
        }
    }
    for (id, _) in graph.nodes() {
        if !seen.contains(&id) {
            let _ = writeln!(out, "not reached: {}", node_text(graph, stats, id));
        }
    }
    out
}

/// Draws a chain in the language of graphviz.
#[must_use]
pub fn dot(graph: &Graph, stats: Option<&Stats>) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut out = String::from("digraph chain {\n    rankdir=LR;\n    node [shape=box];\n");
    for (id, node) in graph.nodes() {
        let text = quoted(&node_lines(graph, stats, id).join("\n")).replace('\n', "\\n");
        let _ = writeln!(out, "    n{id} [label=\"{text}\"];");
        for (on, edge) in node.edges() {
            let counted = edge_text(of_edge(stats, id, on, edge.to));
            let text = quoted(&format!("{}{counted}", label(on, edge)));
            let to = match edge.to {
                To::Node(next) => format!("n{next}"),
                other => {
                    let end = format!("\"{}\"", quoted(&target_text(other)));
                    let _ = writeln!(out, "    {end} [shape=plaintext];");
                    end
                }
            };
            let _ = writeln!(out, "    n{id} -> {to} [label=\"{text}\"];");
        }
    }
    if let Some(entry) = graph.entry() {
        let _ = writeln!(out, "    packet [shape=plaintext];\n    packet -> n{entry};");
    }
    out.push_str("}\n");
    out
}

/// Sizes of the drawing.
const BOX: (usize, usize) = (260, 36);
const GAP: (usize, usize) = (150, 34);
const LINE: usize = 16;

/// Draws a chain as an SVG: nodes in columns, by the fewest edges that lead there.
#[must_use]
pub fn svg(graph: &Graph, stats: Option<&Stats>) -> String {
    let escaped = |text: &str| {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    // Lines of what a node cost are longer and more than those of its name.
    let room = if stats.is_some() { (340, BOX.1 + 2 * LINE) } else { BOX };
    let mut columns: Vec<Vec<NodeId>> = Vec::new();
    let mut placed = BTreeSet::new();
    let mut column: Vec<NodeId> = graph.entry().into_iter().collect();
    while !column.is_empty() {
        placed.extend(column.iter().copied());
        let mut next: Vec<NodeId> = Vec::new();
        for (_, edge) in column.iter().filter_map(|id| graph.node(*id)).flat_map(|n| n.edges()) {
            if let To::Node(id) = edge.to
                && placed.insert(id)
            {
                next.push(id);
            }
        }
        columns.push(std::mem::replace(&mut column, next));
    }
    let place = |id: NodeId| {
        columns.iter().enumerate().find_map(|(x, rows)| {
            let y = rows.iter().position(|n| *n == id)?;
            Some((20 + x * (room.0 + GAP.0), 20 + y * (room.1 + GAP.1) * 2))
        })
    };
    let (mut lines, mut boxes, mut height) = (String::new(), String::new(), 0);
    for (id, node) in graph.nodes() {
        let Some((x, y)) = place(id) else { continue };
        let _ = writeln!(
            boxes,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"white\" \
             stroke=\"black\"/>",
            room.0, room.1
        );
        for (n, line) in node_lines(graph, stats, id).iter().enumerate() {
            let (x, y, text) = (x + 8, y + 23 + n * LINE, escaped(line));
            let _ = writeln!(boxes, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
        }
        height = height.max(y + 2 * (room.1 + GAP.1));
        for (n, (on, edge)) in node.edges().into_iter().enumerate() {
            let counted = edge_text(of_edge(stats, id, on, edge.to));
            let text = escaped(&format!("{}{counted}", label(on, edge)));
            let (from_x, from_y) = (x + room.0, y + room.1 / 2);
            match edge.to {
                To::Node(next) => {
                    let Some((to_x, to_y)) = place(next) else { continue };
                    let to_y = to_y + room.1 / 2;
                    let _ = writeln!(
                        lines,
                        "<path d=\"M{from_x} {from_y} C{} {from_y} {} {to_y} {to_x} {to_y}\" \
                         fill=\"none\" stroke=\"gray\" marker-end=\"url(#arrow)\"/>\n\
                         <text x=\"{}\" y=\"{}\" fill=\"gray\">{text}</text>",
                        from_x + GAP.0 / 2,
                        to_x.saturating_sub(GAP.0 / 2),
                        from_x + 8,
                        (from_y + to_y) / 2 - 4
                    );
                }
                end => {
                    let y = y + room.1 + 14 * (n + 1);
                    height = height.max(y + 20);
                    let end = escaped(&target_text(end));
                    let _ = writeln!(boxes, "<text x=\"{}\" y=\"{y}\">{text}: {end}</text>", x + 8);
                }
            }
        }
    }
    let width = 40 + columns.len().max(1) * (room.0 + GAP.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" \
         font-family=\"monospace\" font-size=\"12\">\n<defs><marker id=\"arrow\" \
         viewBox=\"0 0 10 10\" refX=\"10\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto\"><path d=\"M0 0 L10 5 L0 10 z\" fill=\"gray\"/></marker></defs>\n\
         {lines}{boxes}</svg>\n",
        height.max(80)
    )
}
