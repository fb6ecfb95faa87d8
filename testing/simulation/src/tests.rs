mod broadcast;
mod network;
