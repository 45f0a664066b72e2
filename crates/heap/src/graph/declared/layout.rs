//! Locations of pointers and containers in an object of a given type.

use super::containers::{Shape, Walk, is_container, shape_of};
use memhook_symbols::{DeclaredKind, DeclaredTypes, TypeId};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Maximum number of pointers of one type that are followed.
const MOST_SLOTS: usize = 4096;
/// Maximum nesting depth of members.
const DEEPEST: usize = 32;
/// Maximum length of an array that is expanded element by element.
const SHORT_ARRAY: u64 = 8;

/// Pointers and containers of an object.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub pointers: Vec<(u64, TypeId)>,
    pub containers: Vec<(u64, Contained)>,
    pub arrays: Vec<(u64, Elements)>,
    /// True if the last member is an array without a length.
    pub is_open_ended: bool,
    /// Alignment of the addresses of these objects.
    pub alignment: u64,
    /// The structures at offset 0: base classes and first members.
    pub beginnings: Vec<TypeId>,
}

impl Layout {
    /// Returns true if the object has no pointers or containers.
    pub fn is_leaf(&self) -> bool {
        self.pointers.is_empty() && self.containers.is_empty() && self.arrays.is_empty()
    }
}

/// A container in an object.
#[derive(Clone, Copy)]
pub(super) struct Contained {
    pub shape: &'static Shape,
    pub element: Option<TypeId>,
    /// The container's type in the program.
    pub of: TypeId,
}

impl std::fmt::Debug for Contained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.shape.family)
    }
}

/// Consecutive objects of one type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub of: TypeId,
    pub bytes: u64,
    pub count: u64,
}

/// Layouts, computed on demand.
#[derive(Default)]
pub(super) struct Layouts {
    known: FxHashMap<TypeId, Rc<Layout>>,
}

impl Layouts {
    /// Returns the layout of a type.
    pub fn of(&mut self, types: &mut DeclaredTypes, id: TypeId) -> Rc<Layout> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        let mut layout = Layout {
            alignment: 1,
            ..Layout::default()
        };
        add(
            &mut layout,
            types,
            At {
                offset: 0,
                depth: 0,
            },
            id,
            None,
        );
        layout.beginnings.retain(|&beginning| beginning != id);
        let layout = Rc::new(layout);
        self.known.insert(id, layout.clone());
        layout
    }
}

#[derive(Clone, Copy)]
struct At {
    offset: u64,
    depth: usize,
}

/// Adds the pointers and containers of a type at an offset. `container` is the name that the
/// program uses for the enclosing container.
fn add(
    layout: &mut Layout,
    types: &mut DeclaredTypes,
    at: At,
    id: TypeId,
    container: Option<TypeId>,
) {
    let all = layout.pointers.len() + layout.containers.len() + layout.arrays.len();
    if at.depth > DEEPEST || all > MOST_SLOTS {
        return;
    }
    let deeper = |offset| At {
        offset,
        depth: at.depth + 1,
    };
    let found = types.get(id).clone();
    let own = match (&found.kind, found.alignment) {
        (_, Some(alignment)) => alignment,
        (DeclaredKind::Plain, None) => found.bytes.clamp(1, 16),
        (DeclaredKind::Pointer(_), None) => 8,
        _ => 1,
    };
    layout.alignment = layout.alignment.max(own.min(4096));
    match found.kind {
        DeclaredKind::Pointer(to) => {
            if let Some(to) = to.and_then(|to| types.resolve(to)) {
                layout.pointers.push((at.offset, to));
            }
        }
        DeclaredKind::Array(of, count) => {
            if let Some(of) = types.resolve(of) {
                add_array(layout, types, deeper(at.offset), of, count);
            }
        }
        DeclaredKind::Structure(fields) => {
            if at.offset == 0 && !layout.beginnings.contains(&id) {
                layout.beginnings.push(id);
            }
            let container = container.or(is_container(&found.name).then_some(id));
            if let Some(shape) = shape_of(&found.name, found.bytes) {
                let element = found.arguments.get(shape.element).copied().flatten();
                let element = element.and_then(|element| types.resolve(element));
                let of = container.unwrap_or(id);
                let contained = Contained { shape, element, of };
                layout.alignment = layout.alignment.max(8);
                layout.containers.push((at.offset, contained));
                // The memory around the element counts too.
                if !matches!(shape.walk, Walk::InPlace { .. }) {
                    return;
                }
            }
            for field in fields {
                if let Some(of) = types.resolve(field.of) {
                    let offset = at.offset.saturating_add(field.offset);
                    add(layout, types, deeper(offset), of, container);
                }
            }
        }
        DeclaredKind::Plain | DeclaredKind::Opaque => {}
    }
}

fn add_array(
    layout: &mut Layout,
    types: &mut DeclaredTypes,
    at: At,
    of: TypeId,
    count: Option<u64>,
) {
    // An open-ended array is written `[]`, `[0]`, or, before C99, `[1]`.
    layout.is_open_ended |= at.depth == 2 && count.is_none_or(|count| count <= 1);
    let bytes = types.get(of).bytes;
    let count = count.unwrap_or(0);
    if bytes == 0 || count == 0 {
        return;
    }
    if count <= SHORT_ARRAY {
        for i in 0..count {
            let offset = at.offset.saturating_add(i * bytes);
            add(layout, types, At { offset, ..at }, of, None);
        }
        return;
    }
    // Only members with pointers or containers are worth an entry.
    let mut inner = Layout::default();
    let inside = At { offset: 0, ..at };
    add(&mut inner, types, inside, of, None);
    layout.alignment = layout.alignment.max(inner.alignment);
    if !inner.is_leaf() {
        layout
            .arrays
            .push((at.offset, Elements { of, bytes, count }));
    }
}
