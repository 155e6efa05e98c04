// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Domains of Xen: says in XenStore which of them may share memory.
//!
//! A domain grants memory to another by itself, and XenStore carries what they have
//! to say to each other. All that is left for dom0 is to make the folders, with
//! their permissions and a key for each pair; `kmod/transport/xen/store.h` has the
//! nodes. So this has a thread of its own, and keeps nothing: it looks at all domains
//! whenever one comes or goes, adds what is missing, and removes what is about
//! domains that are gone. It may be killed at any time, and goes on when it is
//! started again.
//!
//! A guest cannot write what is written here. What guests write is read to be shown, and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use hallway_control as control;
use hallway_membership::{printable, Uuid};
use hallway_xenstore::Store;

use crate::config::Config;

/// Before the next try to reach xenstored.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at least: guests change their offers as often as they like.
const REST: Duration = Duration::from_millis(50);
/// Token of the watches of domains that come and go; that of a domain's offers is its number.
const ALL: &str = "domains";
const ROOT: &str = "/local/domain";

/// A domain, but dom0.
#[derive(Debug, PartialEq, Eq)]
struct Domain {
    uuid: Uuid,
    name: String,
}

/// Which VMs may share memory.
pub struct Rules {
    /// The groups of each VM; nothing: all may.
    groups: Option<BTreeMap<Uuid, Vec<usize>>>,
}

impl Rules {
    /// Those of a configuration; without any VM in it, all may.
    pub fn new(config: &Config) -> Self {
        let groups = config.vms.iter().map(|vm| (vm.uuid, vm.groups.clone()));
        Self {
            groups: (!config.vms.is_empty()).then(|| groups.collect()),
        }
    }

    fn allow(&self, one: &Uuid, other: &Uuid) -> bool {
        self.refusal(one, other).is_none()
    }

    /// Why two may not share memory; nothing if they may.
    fn refusal(&self, one: &Uuid, other: &Uuid) -> Option<&'static str> {
        // A domain that migrates within this host is there twice for a while.
        if one == other {
            return Some("both have the same UUID");
        }
        let groups = self.groups.as_ref()?;
        let (Some(mine), Some(theirs)) = (groups.get(one), groups.get(other)) else {
            return Some("the configuration does not name both, by uuid");
        };
        let shared = mine.iter().any(|group| theirs.contains(group));
        (!shared).then_some("the configuration has no group of both")
    }
}

/// All that was seen, to be shown.
#[derive(Default)]
struct Seen {
    domains: BTreeMap<u32, Domain>,
    /// Each announcement of a module: from, to.
    announced: BTreeSet<(u32, u32)>,
    /// Each offer of memory: from, to.
    offers: BTreeSet<(u32, u32)>,
}

impl Seen {
    fn show(&self, rules: &Rules) -> control::Xen {
        let shown = |(&number, domain): (&u32, &Domain)| control::Domain {
            number,
            name: domain.name.clone(),
            uuid: domain.uuid.to_string(),
        };
        let mut pairs = Vec::new();
        for (&one, domain) in &self.domains {
            for (&other, peer) in self.domains.range(one + 1..) {
                let of_pair = |set: &BTreeSet<(u32, u32)>| {
                    let both = [(one, other), (other, one)];
                    let found = both.iter().filter(|from_to| set.contains(from_to));
                    found.map(|(from, _)| *from).collect()
                };
                pairs.push(control::DomainPair {
                    domains: [one, other],
                    refused: rules.refusal(&domain.uuid, &peer.uuid).map(Into::into),
                    announced: of_pair(&self.announced),
                    offering: of_pair(&self.offers),
                });
            }
        }
        control::Xen {
            problem: None,
            domains: self.domains.iter().map(shown).collect(),
            pairs,
        }
    }
}

/// What the thread has seen last.
#[derive(Clone, Default)]
pub struct Shown(Arc<Mutex<control::Xen>>);

impl Shown {
    /// A copy of it.
    pub fn get(&self) -> control::Xen {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, control::Xen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The domains of this host, which are served by a thread.
pub struct Domains {
    store: Store,
    socket: PathBuf,
    rules: Rules,
    seen: Seen,
    shown: Shown,
}

impl Domains {
    /// Reaches xenstored, or says why not.
    pub fn connect(socket: &Path, rules: Rules) -> Result<Self> {
        Ok(Self {
            store: watch(socket)?,
            socket: socket.into(),
            rules,
            seen: Seen::default(),
            shown: Shown::default(),
        })
    }

    /// What `hallway status` shows.
    pub fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Serves them for as long as this process lives.
    pub fn start(mut self) -> Result<()> {
        std::thread::Builder::new()
            .name("domains".into())
            .spawn(move || loop {
                let error = format!("{:#}", self.serve());
                let before = self.shown.lock().problem.replace(error.clone());
                // One that stays the same is said once.
                if before.as_ref() != Some(&error) {
                    tracing::warn!("the domains of Xen: {error}: trying again");
                }
                self.reconnect();
            })
            .context("no thread for the domains of Xen")?;
        Ok(())
    }

    /// Looks whenever a domain comes or goes, or changes its offers; returns why that ended.
    fn serve(&mut self) -> anyhow::Error {
        loop {
            if let Err(error) = self.serve_one() {
                return error;
            }
            std::thread::sleep(REST);
        }
    }

    fn serve_one(&mut self) -> Result<()> {
        let Some(event) = self.store.wait(None)? else {
            return Ok(());
        };
        if event.token == ALL {
            self.look_at_all()?;
        } else if let Ok(number) = event.token.parse() {
            self.read_offers(number)?;
        }
        *self.shown.lock() = self.seen.show(&self.rules);
        Ok(())
    }

    fn look_at_all(&mut self) -> Result<()> {
        let found = look(&mut self.store, &self.rules)?;
        let before: Vec<u32> = self.seen.domains.keys().copied().collect();
        for number in before.iter().filter(|number| !found.contains_key(number)) {
            self.store.unwatch(&offers(*number), &number.to_string())?;
        }
        // Its first event follows at once.
        for number in found.keys().filter(|number| !before.contains(number)) {
            self.store.watch(&offers(*number), &number.to_string())?;
        }
        let both = |(from, to): &(u32, u32)| found.contains_key(from) && found.contains_key(to);
        self.seen.announced.retain(both);
        self.seen.offers.retain(both);
        self.seen.domains = found;
        Ok(())
    }

    /// Reads which peers a domain has announced itself to, and offers memory to: all that is read
    /// of a guest.
    fn read_offers(&mut self, number: u32) -> Result<()> {
        self.seen.announced.retain(|(from, _)| *from != number);
        self.seen.offers.retain(|(from, _)| *from != number);
        for &other in self.seen.domains.keys() {
            let mut has_number = |node: &str| -> Result<bool> {
                let node = format!("{}/{other}/{node}", offers(number));
                let found = self.store.read(&node)?;
                let found = found.and_then(|text| text.parse::<u32>().ok());
                Ok(found.is_some_and(|found| found != 0))
            };
            if has_number("major")? {
                self.seen.announced.insert((number, other));
            }
            if has_number("generation")? {
                self.seen.offers.insert((number, other));
            }
        }
        Ok(())
    }

    fn reconnect(&mut self) {
        self.seen = Seen::default();
        self.store = loop {
            std::thread::sleep(PAUSE);
            if let Ok(store) = watch(&self.socket) {
                break store;
            }
        };
    }
}

fn watch(socket: &Path) -> Result<Store> {
    let mut store = Store::connect(socket)?;
    // Each fires once when it is set.
    for node in ["@introduceDomain", "@releaseDomain"] {
        store.watch(node, ALL)?;
    }
    Ok(store)
}

/// All domains that are there, but dom0.
fn domains(store: &mut Store) -> Result<BTreeMap<u32, Domain>> {
    let mut found = BTreeMap::new();
    for node in store.list(ROOT)? {
        let Some(number) = node.parse().ok().filter(|number| *number != 0) else {
            continue;
        };
        let vm = store.read(&format!("{ROOT}/{node}/vm"))?;
        let uuid = vm
            .as_deref()
            .and_then(|vm| vm.strip_prefix("/vm/")?.parse().ok());
        let name = store.read(&format!("{ROOT}/{node}/name"))?;
        // One that is being made gets them in a moment, before it is introduced.
        if let (Some(uuid), Some(name)) = (uuid, name) {
            let name = printable(name.as_bytes());
            found.insert(number, Domain { uuid, name });
        } else if store.list(&format!("{ROOT}/{node}"))? == ["hallway"] {
            // It went while its folders were written, which made its place again. Only what is
            // ours: another domain with the number may be made just now.
            store.remove(&format!("{ROOT}/{node}/hallway"))?;
        }
    }
    Ok(found)
}

/// Brings the folders of all domains up to date, and returns the domains.
fn look(store: &mut Store, rules: &Rules) -> Result<BTreeMap<u32, Domain>> {
    let found = domains(store)?;
    let may = |one: &Domain, other: &Domain| rules.allow(&one.uuid, &other.uuid);
    for (&number, domain) in &found {
        let peers = found.iter().filter(|(_, other)| may(domain, other));
        let peers: Vec<u32> = peers.map(|(&number, _)| number).collect();
        forget(store, number, "peer", &peers)?;
        // By them a peer sees that this domain lives, and demotes its streams to TCP.
        let all: Vec<u32> = found.keys().copied().collect();
        forget(store, number, "to", &all)?;
    }
    for (&one, domain) in &found {
        let later = found
            .range(one + 1..)
            .filter(|(_, other)| may(domain, other));
        for (&other, peer) in later {
            let key = key(store, one, other)?;
            introduce(store, one, other, peer, &key)?;
            introduce(store, other, one, domain, &key)?;
        }
    }
    Ok(found)
}

fn folder(domain: u32) -> String {
    format!("{ROOT}/{domain}/hallway")
}

/// Where a domain's offers are.
fn offers(domain: u32) -> String {
    format!("{}/to", folder(domain))
}

/// Removes a part of a domain's folder that is about others than these.
fn forget(store: &mut Store, domain: u32, part: &str, others: &[u32]) -> Result<()> {
    let part = format!("{}/{part}", folder(domain));
    for node in store.list(&part)? {
        if !others.iter().any(|other| other.to_string() == node) {
            store.remove(&format!("{part}/{node}"))?;
        }
    }
    Ok(())
}

/// The key of a pair: that which both have, or another. One that a single side has may be of
/// a domain before, whose number the other one has now.
fn key(store: &mut Store, one: u32, other: u32) -> Result<String> {
    let mine = store.read(&format!("{}/peer/{other}/key", folder(one)))?;
    let theirs = store.read(&format!("{}/peer/{one}/key", folder(other)))?;
    match mine {
        Some(key) if theirs.as_ref() == Some(&key) => Ok(key),
        _ => Ok(Uuid::random()?.to_string()),
    }
}

/// Writes what a domain may know of a peer, and makes the place of its offers.
fn introduce(store: &mut Store, domain: u32, number: u32, peer: &Domain, key: &str) -> Result<()> {
    let root = folder(domain);
    let offers = format!("{root}/to/{number}");
    let about = format!("{root}/peer/{number}");
    let is_known = store.read(&format!("{about}/key"))?.as_deref() == Some(key);
    // The guest can remove its own.
    if is_known && store.read(&offers)?.is_some() {
        return Ok(());
    }
    // Without the key, a daemon may have been killed between any two of these.
    for (node, owner, reader) in [
        (&root, 0, domain),
        (&format!("{root}/peer"), 0, domain),
        (&format!("{root}/to"), 0, domain),
        (&offers, domain, number),
        (&about, 0, domain),
    ] {
        if store.read(node)?.is_none() {
            store.write(node, "")?;
        }
        store.permit(node, owner, &[reader])?;
    }
    if is_known {
        return Ok(());
    }
    // The key last: the guest waits for it. Their permissions are those of the node above.
    let uuid = peer.uuid.to_string();
    for (node, value) in [("name", &*peer.name), ("uuid", &uuid), ("key", key)] {
        store.write(&format!("{about}/{node}"), value)?;
    }
    tracing::info!(
        "domains {domain} and {number} ({}) may share memory",
        peer.name
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::{Arc, Mutex};

    /// Nodes of a false XenStore: what each holds, and its permissions.
    type Tree = Arc<Mutex<BTreeMap<String, (String, Vec<String>)>>>;

    fn answer(tree: &Tree, kind: u32, words: &[String]) -> Option<String> {
        let mut tree = tree.lock().unwrap();
        let path = &words[0];
        let below = format!("{path}/");
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        match kind {
            1 => {
                let names = tree.keys().filter_map(|node| node.strip_prefix(&below));
                let mut names: Vec<_> = names.map(|name| name.split('/').next().unwrap()).collect();
                names.dedup();
                let known = tree.contains_key(path) || !names.is_empty();
                known.then(|| names.iter().map(|name| format!("{name}\0")).collect())
            }
            2 => Some(tree.get(path)?.0.clone()),
            11 => {
                let inherited = tree
                    .get(above)
                    .map_or(Vec::new(), |(_, perms)| perms.clone());
                let node = tree
                    .entry(path.clone())
                    .or_insert((String::new(), inherited));
                node.0 = words[1].clone();
                Some("OK\0".into())
            }
            4 | 5 => Some("OK\0".into()),
            13 => {
                tree.retain(|node, _| node != path && !node.starts_with(&below));
                Some("OK\0".into())
            }
            14 => {
                tree.get_mut(path)?.1 = words[1..].to_vec();
                Some("OK\0".into())
            }
            other => panic!("request {other}"),
        }
    }

    /// Hangs up after that number of requests that change something.
    fn answer_all(tree: &Tree, mut stream: UnixStream, mut changes: usize) {
        let mut header = [0u8; 16];
        while stream.read_exact(&mut header).is_ok() {
            let word = |n: usize| u32::from_ne_bytes(header[4 * n..4 * n + 4].try_into().unwrap());
            let mut body = vec![0; word(3) as usize];
            stream.read_exact(&mut body).unwrap();
            let text = String::from_utf8(body).unwrap();
            let words: Vec<String> = text
                .trim_end_matches('\0')
                .split('\0')
                .map(Into::into)
                .collect();
            let words = if word(0) == 11 && words.len() == 1 {
                vec![words[0].clone(), String::new()]
            } else {
                words
            };
            if word(0) >= 11 {
                if changes == 0 {
                    return;
                }
                changes -= 1;
            }
            let found = answer(tree, word(0), &words);
            let (kind, body) = found.map_or((16, "ENOENT\0".into()), |body| (word(0), body));
            let mut bytes = [kind, word(1), 0, body.len() as u32]
                .map(u32::to_ne_bytes)
                .concat();
            bytes.extend_from_slice(body.as_bytes());
            stream.write_all(&bytes).unwrap();
        }
    }

    /// A XenStore with these domains, by number and UUID.
    fn store(domains: &[(u32, u8)]) -> (Store, Tree) {
        store_until(domains, usize::MAX)
    }

    fn store_until(domains: &[(u32, u8)], changes: usize) -> (Store, Tree) {
        let tree = Tree::default();
        for (number, id) in domains {
            add(&tree, *number, *id);
        }
        serve(tree, changes)
    }

    fn serve(tree: Tree, changes: usize) -> (Store, Tree) {
        let name = format!(
            "hallwayd-domains-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let served = tree.clone();
        std::thread::spawn(move || answer_all(&served, listener.accept().unwrap().0, changes));
        let store = Store::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (store, tree)
    }

    fn add(tree: &Tree, number: u32, id: u8) {
        let mut tree = tree.lock().unwrap();
        let perms = vec!["n0".to_owned(), format!("r{number}")];
        let root = format!("{ROOT}/{number}");
        tree.insert(root.clone(), (String::new(), perms.clone()));
        tree.insert(
            format!("{root}/vm"),
            (format!("/vm/{}", uuid(id)), perms.clone()),
        );
        tree.insert(format!("{root}/name"), (format!("vm{id}"), perms));
    }

    fn at(tree: &Tree, path: &str) -> Option<(String, Vec<String>)> {
        tree.lock().unwrap().get(&format!("{ROOT}/{path}")).cloned()
    }

    const ANY: Rules = Rules { groups: None };

    #[test]
    fn a_pair_finds_its_folders_and_nobody_else_does() {
        let (mut store, tree) = store(&[(0, 9), (3, 1), (5, 2)]);
        look(&mut store, &ANY).unwrap();
        let key = at(&tree, "3/hallway/peer/5/key").unwrap();
        assert_eq!(key.1, ["n0", "r3"]);
        assert_eq!(
            at(&tree, "5/hallway/peer/3/key").unwrap(),
            (key.0.clone(), vec!["n0".into(), "r5".into()])
        );
        assert_eq!(
            at(&tree, "3/hallway/peer/5/uuid").unwrap().0,
            uuid(2).to_string()
        );
        assert_eq!(at(&tree, "3/hallway/peer/5/name").unwrap().0, "vm2");
        assert_eq!(at(&tree, "3/hallway/to/5").unwrap().1, ["n3", "r5"]);
        assert_eq!(at(&tree, "3/hallway/to").unwrap().1, ["n0", "r3"]);
        assert!(at(&tree, "0/hallway").is_none());
        // Another look, as after a restart, changes nothing.
        let before = tree.lock().unwrap().clone();
        look(&mut store, &ANY).unwrap();
        assert_eq!(*tree.lock().unwrap(), before);
    }

    #[test]
    fn domains_that_are_gone_are_forgotten() {
        let (mut store, tree) = store(&[(3, 1), (5, 2)]);
        look(&mut store, &ANY).unwrap();
        tree.lock()
            .unwrap()
            .retain(|node, _| !node.starts_with("/local/domain/5"));
        // It was restored under another number.
        add(&tree, 6, 2);
        look(&mut store, &ANY).unwrap();
        assert!(at(&tree, "3/hallway/peer/5").is_none() && at(&tree, "3/hallway/to/5").is_none());
        assert!(at(&tree, "3/hallway/peer/6/key").is_some());
        let none = Rules {
            groups: Some(BTreeMap::new()),
        };
        look(&mut store, &none).unwrap();
        assert!(at(&tree, "3/hallway/peer/6").is_none());
        // 3 sees that 6 lives, though the two may not share memory.
        assert!(at(&tree, "6/hallway/to/3").is_some());
    }

    #[test]
    fn a_key_that_one_side_has_is_not_used_again() {
        let (mut store, tree) = store(&[(3, 1), (5, 2)]);
        look(&mut store, &ANY).unwrap();
        let before = at(&tree, "3/hallway/peer/5/key").unwrap().0;
        // Another domain has the number by the next look.
        store.remove("/local/domain/5").unwrap();
        add(&tree, 5, 7);
        look(&mut store, &ANY).unwrap();
        let key = at(&tree, "3/hallway/peer/5/key").unwrap().0;
        assert_ne!(key, before);
        assert_eq!(at(&tree, "5/hallway/peer/3/key").unwrap().0, key);
        let uuid_node = at(&tree, "3/hallway/peer/5/uuid").unwrap();
        assert_eq!(uuid_node.0, uuid(7).to_string());
    }

    #[test]
    fn a_daemon_killed_anywhere_is_made_up_for() {
        let (mut whole, expected) = store(&[(3, 1), (5, 2)]);
        look(&mut whole, &ANY).unwrap();
        let shape = |tree: &Tree| -> Vec<(String, Vec<String>)> {
            let tree = tree.lock().unwrap();
            let nodes = tree.iter().map(|(node, (_, perms))| (node, perms));
            nodes
                .map(|(node, perms)| (node.clone(), perms.clone()))
                .collect()
        };
        for writes in 0.. {
            let (mut cut, tree) = store_until(&[(3, 1), (5, 2)], writes);
            let killed = look(&mut cut, &ANY).is_err();
            let (mut next, tree) = serve(tree, usize::MAX);
            look(&mut next, &ANY).unwrap();
            assert_eq!(shape(&tree), shape(&expected), "after {writes} writes");
            if !killed {
                break;
            }
        }
    }

    #[test]
    fn a_domain_that_went_meanwhile_leaves_nothing() {
        let (mut store, tree) = store(&[(3, 1), (5, 2)]);
        look(&mut store, &ANY).unwrap();
        store.remove("/local/domain/5").unwrap();
        // As another look wrote, which had seen it before.
        store
            .write("/local/domain/5/hallway/peer/3/key", "")
            .unwrap();
        look(&mut store, &ANY).unwrap();
        assert!(!tree
            .lock()
            .unwrap()
            .keys()
            .any(|node| node.starts_with("/local/domain/5")));
    }

    fn uuid(n: u8) -> Uuid {
        Uuid([n; 16])
    }

    #[test]
    fn what_is_shown_are_offers_and_reasons() {
        let (store, tree) = store(&[(3, 1), (5, 2), (6, 3)]);
        let groups = [(uuid(1), vec![0]), (uuid(2), vec![0]), (uuid(3), vec![1])];
        let mut domains = Domains {
            store,
            socket: PathBuf::new(),
            rules: Rules {
                groups: Some(groups.into_iter().collect()),
            },
            seen: Seen::default(),
            shown: Shown::default(),
        };
        domains.look_at_all().unwrap();
        let write = |from: u32, to: u32, name: &str, text: &str| {
            let node = format!("{ROOT}/{from}/hallway/to/{to}/{name}");
            tree.lock().unwrap().insert(node, (text.into(), Vec::new()));
        };
        let offer = |from, to, text: &str| write(from, to, "generation", text);
        write(5, 3, "major", "1");
        offer(3, 5, "7");
        // A guest writes anything, also where it has no peer.
        offer(5, 3, "18446744073709551616");
        offer(5, 9, "7");
        let pairs = |domains: &Domains| -> Vec<(Vec<u32>, Vec<u32>, bool)> {
            let shown = domains.seen.show(&domains.rules);
            let pairs = shown.pairs.into_iter();
            pairs
                .map(|pair| (pair.announced, pair.offering, pair.refused.is_some()))
                .collect()
        };
        domains.read_offers(3).unwrap();
        domains.read_offers(5).unwrap();
        let refused = (vec![], vec![], true);
        let expected = [(vec![5], vec![3], false), refused.clone(), refused.clone()];
        assert_eq!(pairs(&domains), expected);
        offer(5, 3, "8");
        domains.read_offers(5).unwrap();
        assert_eq!(pairs(&domains)[0], (vec![5], vec![3, 5], false));
        domains.store.remove("/local/domain/5").unwrap();
        domains.look_at_all().unwrap();
        assert_eq!(pairs(&domains), [refused]);
    }

    #[test]
    fn rules_are_those_of_the_groups() {
        let all = Rules { groups: None };
        assert!(all.allow(&uuid(1), &uuid(2)));
        assert!(!all.allow(&uuid(1), &uuid(1)));
        let groups = [
            (uuid(1), vec![0]),
            (uuid(2), vec![1, 0]),
            (uuid(3), vec![1]),
        ];
        let some = Rules {
            groups: Some(groups.into_iter().collect()),
        };
        assert!(some.allow(&uuid(1), &uuid(2)));
        assert!(some.allow(&uuid(3), &uuid(2)));
        assert!(!some.allow(&uuid(1), &uuid(3)));
        assert!(!some.allow(&uuid(1), &uuid(4)));
    }
}
