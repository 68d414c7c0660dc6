//! Flame graphs: an SVG whose boxes are as wide as what ran in them. In a browser a click on a box
//! makes it fill the picture, and the search (Ctrl-F, or the word in the corner) marks functions.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Frames;

/// Width of the picture, of which [`MARGIN`] is left free on both sides.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
/// Height of a box.
const ROW: usize = 16;
/// Height of the lines above the boxes.
const TOP: usize = 40;
/// Narrower boxes are left out.
const NARROWEST: f64 = 0.1;
/// Width of a character.
const CHARACTER: f64 = 6.6;
/// Deeper stacks are cut.
const DEEPEST: usize = 1000;

/// Functions with the same callers.
#[derive(Default)]
struct Node<'f> {
    weight: u64,
    children: BTreeMap<&'f str, usize>,
}

/// A box to draw: the node, its name, depth and first sample.
struct Drawn<'f> {
    node: usize,
    name: &'f str,
    depth: usize,
    start: u64,
}

/// Writes the picture.
pub fn write(frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    let nodes = tree(frames);
    let total = nodes.first().map_or(0, |n| n.weight);
    let scale = (WIDTH - 2.0 * MARGIN) / total.max(1) as f64;
    let boxes = boxes(&nodes, scale);
    let depth = boxes.iter().map(|b| b.depth).max().unwrap_or(0) + 1;
    let height = TOP + (depth + 1) * ROW;
    writeln!(
        out,
        r#"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" onload="start()">
<style>text{{font:11px monospace}}rect{{stroke:#fff;stroke-width:.5}}g{{cursor:pointer}}g:hover rect{{stroke:#000}}.m rect{{fill:#c2f}}.p{{opacity:.5}}</style>
<rect x="0" y="0" width="100%" height="100%" style="fill:#fafafa"/>
<text x="{MARGIN}" y="24" id="d">{total} {}</text>
<text x="{}" y="24" text-anchor="end" id="s" style="cursor:pointer" onclick="ask()">Search</text>"#,
        frames.unit.name(),
        WIDTH - MARGIN,
    )?;
    for b in &boxes {
        let weight = nodes.get(b.node).map_or(0, |n| n.weight);
        let (x, width) = (MARGIN + b.start as f64 * scale, weight as f64 * scale);
        let y = TOP + (depth - 1 - b.depth) * ROW;
        let (name, percent) = (escaped(b.name), weight as f64 * 100.0 / total.max(1) as f64);
        writeln!(
            out,
            r#"<g onclick="zoom(this)" data-x="{}" data-w="{weight}" data-d="{}"><title>{name}: {weight} ({percent:.2} %)</title><rect x="{x:.2}" y="{y}" width="{width:.2}" height="{}" fill="{}"/><text x="{:.2}" y="{}">{}</text></g>"#,
            b.start,
            b.depth,
            ROW - 1,
            color(b.name),
            x + 3.0,
            y + 11,
            escaped(&cut(b.name, width)),
        )?;
    }
    write!(out, "<script><![CDATA[{}]]></script>\n</svg>\n", script(total))
}

fn tree(frames: &Frames) -> Vec<Node<'_>> {
    let mut nodes = vec![Node::default()];
    for stack in frames.stacks.iter().filter(|s| s.weight > 0) {
        let mut at = 0;
        let add = |nodes: &mut Vec<Node<'_>>, at: usize| {
            if let Some(node) = nodes.get_mut(at) {
                node.weight = node.weight.saturating_add(stack.weight);
            }
        };
        add(&mut nodes, at);
        for name in frames.names(stack).take(DEEPEST) {
            let next = nodes.len();
            let Some(node) = nodes.get_mut(at) else { break };
            at = *node.children.entry(name).or_insert(next);
            if at == next {
                nodes.push(Node::default());
            }
            add(&mut nodes, at);
        }
    }
    nodes
}

/// Lays the boxes out, callers before what they call.
fn boxes<'f>(nodes: &[Node<'f>], scale: f64) -> Vec<Drawn<'f>> {
    let mut all = Vec::new();
    let mut open = vec![Drawn { node: 0, name: "all", depth: 0, start: 0 }];
    while let Some(drawn) = open.pop() {
        let Some(node) = nodes.get(drawn.node) else { continue };
        let mut start = drawn.start;
        for (name, child) in &node.children {
            let weight = nodes.get(*child).map_or(0, |n| n.weight);
            if weight as f64 * scale >= NARROWEST {
                open.push(Drawn { node: *child, name, depth: drawn.depth + 1, start });
            }
            start = start.saturating_add(weight);
        }
        all.push(drawn);
    }
    all
}

/// A warm color that follows from the name, so that a function has the same one everywhere.
fn color(name: &str) -> String {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
    let part = |shift: u32, range: u32| (hash >> shift) % range;
    format!("rgb({},{},{})", 205 + part(0, 50), 80 + part(8, 150), part(16, 55))
}

/// As much of a name as fits.
fn cut(name: &str, width: f64) -> String {
    let room = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    match name.chars().count() {
        count if count <= room => name.to_owned(),
        _ if room < 3 => String::new(),
        _ => name.chars().take(room - 2).chain("..".chars()).collect(),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write it.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

fn script(total: u64) -> String {
    let inner = WIDTH - 2.0 * MARGIN;
    format!(
        "var T={total},M={MARGIN},W={inner},C={CHARACTER};{}",
        "var G,D;function start(){G=[].slice.call(document.querySelectorAll('g'));D=document.getElementById('d');\
G.forEach(function(g){g.n=g.querySelector('title').textContent;g.f=g.n.slice(0,g.n.lastIndexOf(': '));g.onmouseover=function(){D.textContent=g.n}})}\
function num(g,k){return +g.getAttribute('data-'+k)}\
function zoom(z){var zx=num(z,'x'),zw=num(z,'w'),zd=num(z,'d');G.forEach(function(g){var x=num(g,'x'),w=num(g,'w'),up=num(g,'d')<zd&&x<=zx&&x+w>=zx+zw,\
on=up||x>=zx&&x+w<=zx+zw;g.style.display=on?'':'none';g.classList.toggle('p',up);if(!on)return;var X=up?M:M+(x-zx)*W/zw,V=up?W:w*W/zw,r=g.querySelector('rect'),t=g.querySelector('text');\
r.setAttribute('x',X);r.setAttribute('width',V);t.setAttribute('x',X+3);var n=Math.floor((V-6)/C);t.textContent=g.f.length<=n?g.f:n<3?'':g.f.slice(0,n-2)+'..'})}\
function ask(){var q=prompt('Functions that match (regular expression):','');if(q===null)return;var r;try{r=new RegExp(q)}catch(e){return}var a=[],s=0;\
G.forEach(function(g){var m=q!==''&&r.test(g.f);g.classList.toggle('m',m);if(m)a.push([num(g,'x'),num(g,'w')])});a.sort(function(p,q){return p[0]-q[0]||q[1]-p[1]});\
var e=0;a.forEach(function(p){if(p[0]>=e){s+=p[1];e=p[0]+p[1]}});D.textContent=q===''?'':q+': '+s+' of '+T+' ('+(T?100*s/T:0).toFixed(2)+' %)'}\
document.onkeydown=function(e){if(e.ctrlKey&&e.key==='f'){e.preventDefault();ask()}}"
    )
}
