//! The command that starts an agent, and the line with its order.

use gateway_tasks::{AgentHandle, AgentOrder, StartError};
use job::order::Order;

/// A started agent.
pub(crate) type Started = Result<Box<dyn AgentHandle>, StartError>;

/// The line that carries an agent's order.
pub(crate) fn order_line(order: AgentOrder) -> Result<Vec<u8>, StartError> {
    Order(order).line().map_err(|e| StartError(e.to_string()))
}

/// The command that starts an agent on a node: `landbridge` from the sites file, else this very program.
pub(crate) fn agent_words(landbridge: Option<&str>) -> Result<Vec<String>, StartError> {
    let own = || {
        let path = std::env::current_exe()
            .map_err(|e| StartError(format!("cannot find the landbridge command itself: {e}")))?;
        let text = path.into_os_string().into_string();
        text.map_err(|path| StartError(format!("the path of landbridge, {path:?}, is not UTF-8: set `landbridge`")))
    };
    let program = landbridge.map_or_else(own, |path| Ok(path.to_owned()))?;
    Ok(vec![program, "agent".to_owned()])
}
