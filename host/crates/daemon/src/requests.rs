// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in the guests' pages: joining a region, leaving it, saying hello.

use hallway_abi::region as abi;
use hallway_membership::{Request, Uuid};

use crate::connections::{Asked, Connection, Place};
use crate::effect::Effect;
use crate::helpers::GUEST_SLOT;
use crate::picture::Picture;
use crate::poller::Poller;
use crate::regions::Admission;

/// What a request gets.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is refused.
    Refuse(Refusal),
    /// It is granted.
    Grant,
    /// It is granted this slot of this region, once QEMUs know of its guest.
    Join { region: String, slot: usize },
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    status: u32,
    /// Name of the region that it is about, for the log.
    region: Option<String>,
    why: String,
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

fn refuse(status: u32, why: String) -> Refusal {
    Refusal {
        status,
        region: None,
        why,
    }
}

/// Answers the requests of all guests. `only_waiting`: only the joins that wait for
/// QEMUs to learn of a guest.
pub fn answer_all(picture: &mut Picture, only_waiting: bool, poller: &Poller) {
    for number in picture.connections.numbers() {
        answer(picture, number, only_waiting, poller);
    }
}

/// Answers the requests of one guest.
pub fn answer(picture: &mut Picture, number: u64, only_waiting: bool, poller: &Poller) {
    let mut from = 0;
    let next = |picture: &mut Picture, from| {
        let connections = &mut picture.connections;
        connections.next_request(number, from, only_waiting)
    };
    while let Some(asked) = next(picture, from) {
        from = asked.index + 1;
        end_closed_namesakes(picture, number, asked.request.vm, poller);
        match judge(picture, number, &asked.request) {
            Verdict::Join { region, slot } => {
                let connections = &mut picture.connections;
                if connections.introduce(number, asked.index, &region) {
                    enter(
                        picture,
                        number,
                        &asked,
                        abi::STATUS_OK,
                        Some((region, slot)),
                    );
                }
            }
            Verdict::Grant => enter(picture, number, &asked, abi::STATUS_OK, None),
            Verdict::Refuse(Refusal {
                status,
                region,
                why,
            }) => {
                let connections = &mut picture.connections;
                connections.hear_refused(number, &asked, region.as_deref(), &why);
                enter(picture, number, &asked, status, None);
            }
        }
    }
}

/// Ends the connections for the same VM whose QEMU has ended: the event that shows
/// it may wait in this very round.
fn end_closed_namesakes(picture: &mut Picture, number: u64, uuid: Uuid, poller: &Poller) {
    while let Some(other) = picture.connections.namesake(number, uuid) {
        let other = other.number;
        let effects = picture.connections.end_if_closed(other, poller);
        if picture.connections.get(other).is_some() {
            return;
        }
        picture.apply(effects);
    }
}

/// Decides about a request.
fn judge(picture: &Picture, number: u64, request: &Request) -> Verdict {
    if request.major != abi::MAJOR {
        let why = format!(
            "guest {:?} speaks ABI version {}.{}, this hallwayd {}.{}: install the same release \
             of Hallway on both",
            request.name,
            request.major,
            request.minor,
            abi::MAJOR,
            abi::MINOR
        );
        return refuse(abi::STATUS_VERSION, why).into();
    }
    match request.command {
        abi::COMMAND_HELLO => {
            judge_vm(picture, number, request).map_or_else(Verdict::from, |()| Verdict::Grant)
        }
        abi::COMMAND_JOIN => judge_join(picture, number, request).unwrap_or_else(Verdict::from),
        // A guest that came by migration may leave a region of the host before.
        abi::COMMAND_LEAVE => Verdict::Grant,
        other => refuse(abi::STATUS_INVALID, format!("unknown command {other}")).into(),
    }
}

/// Decides about a request to join a region.
fn judge_join(picture: &Picture, number: u64, request: &Request) -> Result<Verdict, Refusal> {
    let Some(served) = picture.regions.of_uuid(request.region) else {
        let why = format!(
            "asks for region {}, which is not served here: give the VM the file of a region that \
             hallway status shows",
            request.region
        );
        return Err(refuse(abi::STATUS_UNKNOWN, why));
    };
    judge_vm(picture, number, request)?;
    let refuse = |status, why| Refusal {
        region: Some(served.name.clone()),
        ..refuse(status, why)
    };
    let helper = picture.config.helper_named(&served.name);
    if !picture.admits(served, request.vm) {
        let vm = request.vm;
        let why = match served.admission {
            _ if picture.is_withdrawn(&served.name) => {
                format!("VM {vm} joins a region that is being withdrawn")
            }
            _ if helper.is_some() => {
                let role = helper.map_or(String::new(), |id| id.role.to_string());
                format!("VM {vm} asks for the region of another VM and its {role}")
            }
            Admission::All | Admission::Configured => format!(
                "VM {vm} is not in this group: put it there in the configuration, or plug the \
                 region out"
            ),
            Admission::Members | Admission::None => format!(
                "VM {vm} asks for a region that hallwayd was not asked for again: ask for it by \
                 --region or the configuration, or plug it out"
            ),
        };
        return Err(refuse(abi::STATUS_DENIED, why));
    }
    if helper.is_some() {
        // The other one is the helper's, while there is none, too.
        return Ok(Verdict::Join {
            region: served.name.clone(),
            slot: GUEST_SLOT,
        });
    }
    let Some(slot) = served.region.slot_for(request.vm) else {
        let why = format!(
            "all {} slots are taken: make the region with more",
            served.region.geometry().slots()
        );
        return Err(refuse(abi::STATUS_FULL, why));
    };
    Ok(Verdict::Join {
        region: served.name.clone(),
        slot,
    })
}

/// Decides whether a guest may be the VM that it says.
fn judge_vm(picture: &Picture, number: u64, request: &Request) -> Result<(), Refusal> {
    let (connections, uuid) = (&picture.connections, request.vm);
    if uuid.is_nil() {
        let why = "the VM has no UUID: start its QEMU with -uuid";
        return Err(refuse(abi::STATUS_INVALID, why.into()));
    }
    if connections.namesake(number, uuid).is_some() {
        let why = format!(
            "another running VM has UUID {uuid} too: start each QEMU with a -uuid of its own"
        );
        return Err(refuse(abi::STATUS_DENIED, why));
    }
    let is_genuine = |one: &Connection| picture.vms.is_genuine(one, uuid, connections);
    if !connections.get(number).is_some_and(is_genuine) {
        let why =
            format!("it says that it is {uuid}, but by the monitors its QEMU is not that VM's");
        return Err(refuse(abi::STATUS_DENIED, why));
    }
    Ok(())
}

/// Enters a decision into the picture.
fn enter(
    picture: &mut Picture,
    number: u64,
    asked: &Asked,
    status: u32,
    join: Option<(String, usize)>,
) {
    let request = &asked.request;
    let Some(label) = picture.connections.get(number).map(Connection::label) else {
        return;
    };
    // Only a join says anything about other entries: a leave may be an old one.
    let asks_to_join = request.command == abi::COMMAND_JOIN;
    let about = picture.regions.of_uuid(request.region);
    let joined = about
        .filter(|_| asks_to_join)
        .map(|served| served.name.clone());
    let connections = &mut picture.connections;
    let effects = connections.replace(number, asked.index, joined.as_deref());
    picture.apply(effects);
    let place = join.map(|(region, slot)| {
        let connections = &mut picture.connections;
        let cid = connections.give_cid(number, request, &picture.config);
        Place {
            generation: picture.regions.enter(&label, &region, slot, request, cid),
            region,
            slot,
        }
    });
    picture.connections.answer(number, asked, status, place);
    let one = picture.connections.get(number);
    if let Some((pid, uuid)) = one.and_then(|one| picture.vms.confirmed(one)) {
        picture.apply(vec![Effect::Verified(pid, uuid)]);
    }
    if request.command == abi::COMMAND_HELLO && status == abi::STATUS_OK {
        picture.apply(vec![Effect::Started(request.vm)]);
    }
}
