//! Access control lists by name. An id is valid on one machine only: on another it names a different account or none.
//! So a list travels as text with the names of users and groups; entries whose name has no account at the target are
//! dropped.

use std::collections::HashMap;

/// A POSIX access control list, as `system.posix_acl_access` and `system.posix_acl_default` hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    /// Read, write and execute, as in a mode.
    bits: u16,
}

/// Kinds of entries, in the order the kernel requires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner,
    User(Who),
    OwningGroup,
    Group(Who),
    Mask,
    Other,
}

/// The name of an account, or `#` and its number if it has no name.
type Who = String;

/// Version of the attribute's format.
const VERSION: u32 = 2;
/// The id field of an entry without an id.
const NO_ID: u32 = u32::MAX;
const ENTRY: usize = 8;

/// Pairs of attribute names: the name in transit, and the name on a file.
const TRAVELLING: [(&[u8], &[u8]); 2] =
    [(b"landbridge.acl_access", b"system.posix_acl_access"), (b"landbridge.acl_default", b"system.posix_acl_default")];

/// The name in transit of a list's attribute. `None`: this attribute is not a list.
pub(crate) fn travelling(name: &[u8]) -> Option<&'static [u8]> {
    TRAVELLING.iter().find(|(_, at_file)| *at_file == name).map(|(travelling, _)| *travelling)
}

/// The name on a file of an attribute in transit.
pub(crate) fn at_file(name: &[u8]) -> Option<&'static [u8]> {
    TRAVELLING.iter().find(|(travelling, _)| *travelling == name).map(|(_, at_file)| *at_file)
}

/// Returns true for the list of the file itself, false for a folder's default list.
pub(crate) fn is_access(name: &[u8]) -> bool {
    name == TRAVELLING[0].0
}

/// Limit on account lookups: each costs a process, and the names come from another machine.
const MOST_ASKED: usize = 1000;

/// Users and groups of this machine. Lookups are cached.
#[derive(Debug)]
pub(crate) struct People {
    names: HashMap<(bool, u32), Option<String>>,
    ids: HashMap<(bool, String), Option<u32>>,
    lookup: Lookup,
}

/// Functions that look up the machine's accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    /// The name of a group or of a user.
    pub(crate) name: fn(bool, u32) -> Option<String>,
    pub(crate) id: fn(bool, &str) -> Option<u32>,
}

impl Default for People {
    fn default() -> People {
        People::with(Lookup { name: crate::accounts::name, id: crate::accounts::id })
    }
}

impl People {
    pub(crate) fn with(lookup: Lookup) -> People {
        People { names: HashMap::new(), ids: HashMap::new(), lookup }
    }

    fn name(&mut self, group: bool, id: u32) -> Who {
        let find = self.lookup.name;
        let found = self.names.entry((group, id)).or_insert_with(|| find(group, id));
        // A name that the text format cannot delimit counts as none.
        let plain = |name: &&String| !name.is_empty() && !name.contains([':', '\n', '#']);
        found.as_ref().filter(plain).cloned().unwrap_or_else(|| format!("#{id}"))
    }

    fn id(&mut self, group: bool, who: &str) -> Option<u32> {
        if who.starts_with('#') {
            return None;
        }
        let key = (group, who.to_owned());
        if self.ids.len() >= MOST_ASKED && !self.ids.contains_key(&key) {
            return None;
        }
        let find = self.lookup.id;
        *self.ids.entry(key).or_insert_with(|| find(group, who))
    }
}

impl Acl {
    /// Parses the attribute of a file. `None`: its format is unknown.
    pub(crate) fn of_file(value: &[u8], people: &mut People) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk()?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY != 0 {
            return None;
        }
        let mut found = Vec::new();
        for entry in entries.chunks_exact(ENTRY) {
            let bits = u16::from_le_bytes([entry[2], entry[3]]) & 7;
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let tag = match u16::from_le_bytes([entry[0], entry[1]]) {
                0x01 => Tag::Owner,
                0x02 => Tag::User(people.name(false, id)),
                0x04 => Tag::OwningGroup,
                0x08 => Tag::Group(people.name(true, id)),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                _ => return None,
            };
            found.push(AclEntry { tag, bits });
        }
        Some(Acl(found))
    }

    /// The attribute for a file of this machine. Adds names without an account here to `absent`.
    pub(crate) fn for_file(&self, people: &mut People, absent: &mut Vec<Who>) -> Vec<u8> {
        let mut entries: Vec<(u16, u32, u16)> = Vec::new();
        for AclEntry { tag, bits } in &self.0 {
            let mut named = |group: bool, tag: u16, who: &Who| match people.id(group, who) {
                Some(id) => Some((tag, id)),
                None => {
                    absent.push(who.clone());
                    None
                }
            };
            let found = match tag {
                Tag::Owner => Some((0x01, NO_ID)),
                Tag::User(who) => named(false, 0x02, who),
                Tag::OwningGroup => Some((0x04, NO_ID)),
                Tag::Group(who) => named(true, 0x08, who),
                Tag::Mask => Some((0x10, NO_ID)),
                Tag::Other => Some((0x20, NO_ID)),
            };
            entries.extend(found.map(|(tag, id)| (tag, id, *bits)));
        }
        entries.sort_unstable();
        entries.dedup_by_key(|(tag, id, _)| (*tag, *id));
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, id, bits) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&bits.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    /// The list as text, as `getfacl` prints it.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let line = |AclEntry { tag, bits }: &AclEntry| {
            let (kind, who) = match tag {
                Tag::Owner => ("user", ""),
                Tag::User(who) => ("user", &who[..]),
                Tag::OwningGroup => ("group", ""),
                Tag::Group(who) => ("group", &who[..]),
                Tag::Mask => ("mask", ""),
                Tag::Other => ("other", ""),
            };
            let bit = |bit: u16, letter: char| if bits & bit == 0 { '-' } else { letter };
            format!("{kind}:{who}:{}{}{}\n", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
        };
        self.0.iter().map(line).collect::<String>().into_bytes()
    }

    /// Parses the text format. `None`: the text is malformed.
    pub(crate) fn of_text(text: &[u8]) -> Option<Acl> {
        let mut found = Vec::new();
        for line in std::str::from_utf8(text).ok()?.lines() {
            let (kind, rest) = line.split_once(':')?;
            let (who, letters) = rest.split_once(':')?;
            let tag = match (kind, who) {
                ("user", "") => Tag::Owner,
                ("user", who) => Tag::User(who.to_owned()),
                ("group", "") => Tag::OwningGroup,
                ("group", who) => Tag::Group(who.to_owned()),
                ("mask", "") => Tag::Mask,
                ("other", "") => Tag::Other,
                _ => return None,
            };
            let bits = letters.chars().fold(0, |bits, letter| bits << 1 | u16::from(letter != '-'));
            if letters.len() != 3 {
                return None;
            }
            found.push(AclEntry { tag, bits });
        }
        Some(Acl(found))
    }

    /// The owning group's permissions without the list. On a file with a list, the mode's group bits hold the mask,
    /// which may grant more.
    pub(crate) fn group_bits(&self) -> Option<u32> {
        let bits = |tag: &Tag| self.0.iter().find(|entry| entry.tag == *tag).map(|entry| u32::from(entry.bits));
        bits(&Tag::OwningGroup).map(|group| group & bits(&Tag::Mask).unwrap_or(7))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(names: &'static str) -> People {
        // An id is a position in a list of names.
        const LYON: &str = "anna bob carol";
        fn name_in(names: &str, id: u32) -> Option<String> {
            names.split(' ').nth(id as usize).map(str::to_owned)
        }
        fn id_in(names: &str, who: &str) -> Option<u32> {
            names.split(' ').position(|name| name == who).map(|id| id as u32)
        }
        match names {
            LYON => People::with(Lookup { name: |_, id| name_in(LYON, id), id: |_, who| id_in(LYON, who) }),
            _ => People::with(Lookup { name: |_, id| name_in("dora anna", id), id: |_, who| id_in("dora anna", who) }),
        }
    }

    fn attribute(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            value.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn people_keep_their_rights_and_nobody_gets_anothers() {
        let none = NO_ID;
        let value = attribute(&[
            (1, 7, none),
            (2, 6, 0),
            (2, 4, 1),
            (4, 0, none),
            (8, 5, 2),
            (8, 7, 54321),
            (16, 7, none),
            (32, 0, none),
        ]);
        let acl = Acl::of_file(&value, &mut machine("anna bob carol")).unwrap();
        let text = acl.to_text();
        assert_eq!(
            String::from_utf8(text.clone()).unwrap(),
            "user::rwx\nuser:anna:rw-\nuser:bob:r--\ngroup::---\ngroup:carol:r-x\ngroup:#54321:rwx\nmask::rwx\nother::---\n"
        );
        assert_eq!(Acl::of_text(&text).unwrap(), acl);
        let mut absent = Vec::new();
        let there = acl.for_file(&mut machine("dora anna"), &mut absent);
        assert_eq!(there, attribute(&[(1, 7, none), (2, 6, 1), (4, 0, none), (16, 7, none), (32, 0, none)]));
        assert_eq!(absent, ["bob", "carol", "#54321"]);
        assert_eq!(acl.group_bits(), Some(0), "not those of the mask");
        assert_eq!(acl.for_file(&mut machine("anna bob carol"), &mut absent).len(), value.len() - ENTRY);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for value in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x01", b"\x02\0\0\0\x40\0\x07\0\0\0\0\0"] {
            assert!(Acl::of_file(value, &mut machine("")).is_none());
        }
        for text in ["user:anna", "user:anna:rwxx", "mask:anna:rwx", "x::rwx", "\u{1b}"] {
            assert!(Acl::of_text(text.as_bytes()).is_none(), "{text}");
        }
    }
}
